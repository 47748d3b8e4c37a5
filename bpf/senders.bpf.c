// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whose TCP connections to a port of the loopback interface are, also after they are closed.
 *
 * Whoever sends a report in one piece and closes has often gone before it is accepted, and the kernel
 * does not say of a closed socket whose it was. So the user is noted when the connection is made, by its
 * address: who connects from the same one later takes its place. It changes nothing.
 */
#include "kernel.bpf.h"
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

enum { MAP_LRU_HASH = 9 };			/* enum bpf_map_type */
enum { ESTABLISHED = 1, SYN_SENT = 2 };		/* net/tcp_states.h */
enum { LOOPBACK = 0x7f000001, SENDERS = 4096 };

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
	__be32 address;
	u32 port;
};

struct of_user {
	u64 since_ns;		/* CLOCK_MONOTONIC */
	u32 uid;		/* of the machine's user namespace */
	u32 unused;
};

/* What is connected to; set before this is attached. */
struct listener {
	u32 space;		/* inode number of its network namespace */
	__be16 port;		/* of 127.0.0.1 */
	u16 unused;
} listener SEC(".bss.listener");

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
	struct sender from = {};
	struct of_user its = {};

	if (before != SYN_SENT || now != ESTABLISHED || ends->skc_dport != listener.port ||
	    ends->skc_daddr != bpf_htonl(LOOPBACK) || ends->skc_net.net->ns.inum != listener.space)
		return 0;
	from.address = ends->skc_rcv_saddr;
	from.port = ends->skc_num;
	its.since_ns = bpf_ktime_get_ns();
	its.uid = sk->sk_uid.val;
	if (bpf_map_update_elem(&senders, &from, &its, 0))	/* nor is it who was there before */
		bpf_map_delete_elem(&senders, &from);
	return 0;
}
