#!/bin/sh
# PID 1 of a test guest; see guest.py. Its root is the host's /, read-only, over virtiofs.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for word in $(cat /proc/cmdline); do
    case $word in
    job=*) job=${word#job=} ;;
    pid1) pid1=yes ;;  # the command becomes process 1
    esac
done
for port in /sys/class/virtio-ports/vport*; do
    case $(cat "$port/name") in
    out) out=/dev/${port##*/} ;;
    result) result=/dev/${port##*/} ;;
    esac
done
# Where programs write. The job's folder may lie below one of these, so hold on to it.
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/job /run/lock
mkfifo /run/block
mount --bind "$job" /run/job
mkdir /run/host
mount --bind / /run/host
[ -e /run/job/private ] || mount -o remount,bind,ro /
for folder in $(cat /run/job/writable); do
    mount -t tmpfs -o mode=1777 tmpfs "$folder"
done
. /run/job/mounts
ip link set lo up 2>/dev/null
exec 3>"$result"
echo up >&3
if [ -n "$pid1" ]; then
    export out result
    . /run/job/command
fi
setsid sh /run/job/command >"$out" 2>&1 </dev/null
echo "exit $?" >&3
sync
echo 1 >/proc/sys/kernel/sysrq
echo o >/proc/sysrq-trigger
# The root vanishes during power-off: to exec anything now (sleep) can fail and panic, a busy loop
# delays the power-off by a minute. A builtin that blocks does neither.
read -r _ <>/run/block
