// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whose TCP connections to a port of the loopback interface are, also after they are closed.
 *
 * Whoever sends a report in one piece and closes has often gone before it is accepted, and the kernel
 * does not say of a closed socket whose it was. So the user is noted when the connection is made, by its
 * addresses: who connects from the same ones later takes its place. It changes nothing.
 */
#include "kernel.bpf.h"
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

enum { MAP_LRU_HASH = 9 };			/* enum bpf_map_type */
enum { ESTABLISHED = 1, SYN_SENT = 2 };		/* net/tcp_states.h */
enum { LOOPBACK = 0x7f000001, SENDERS = 4096, PORTS = 1 << 16 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common___senders {
	unsigned int inum;
};

struct net___senders {
	struct ns_common___senders ns;
};

struct sock_common___senders {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	u16 skc_num;
	struct {
		struct net___senders *net;
	} skc_net;
};

struct sock___senders {
	struct sock_common___senders __sk_common;
	struct {
		u32 val;
	} sk_uid;
};

#pragma clang attribute pop

struct sender {
	u32 netns;		/* its inode number */
	__be32 address;
	u16 port;
	u16 to;			/* port of 127.0.0.1 */
};

struct of_user {
	u64 since_ns;		/* CLOCK_MONOTONIC */
	u32 uid;		/* of the machine's user namespace */
	u32 unused;
};

u8 wanted[PORTS] SEC(".bss.wanted");	/* ports of ours; user space sets them */

struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, SENDERS);
	__type(key, struct sender);
	__type(value, struct of_user);
} senders SEC(".maps");

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(connected, const struct sock___senders *sk, int before, int now)
{
	const struct sock_common___senders *ends = &sk->__sk_common;
	u16 to = bpf_ntohs(ends->skc_dport);
	struct sender from = {};
	struct of_user its = {};

	if (before != SYN_SENT || now != ESTABLISHED || !wanted[to] ||
	    ends->skc_daddr != bpf_htonl(LOOPBACK))
		return 0;
	from.netns = ends->skc_net.net->ns.inum;
	from.address = ends->skc_rcv_saddr;
	from.port = ends->skc_num;
	from.to = to;
	its.since_ns = bpf_ktime_get_ns();
	its.uid = sk->sk_uid.val;
	bpf_map_update_elem(&senders, &from, &its, 0);
	return 0;
}
