#!/bin/sh
# PID 1 of a test guest; see guest.py. Its root is the host's /, read-only, over virtiofs. A process
# takes an emulated CPU a tenth of a second, so one mounts all. The kernel hands on what it does not
# know: job=FOLDER as a variable, pid1 as an argument.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -a -T "$job/fstab"
[ -e /run/job/private ] || mount -o remount,bind,ro /
for port in /sys/class/virtio-ports/vport*; do
    read -r name <"$port/name"
    case $name in
    out) out=/dev/${port##*/} ;;
    result) result=/dev/${port##*/} ;;
    esac
done
mkdir /run/lock
mkfifo /run/block
ip link set lo up 2>/dev/null
exec 3>"$result"
echo up >&3
case " $* " in
*" pid1 "*)  # the command becomes process 1
    export out result
    . /run/job/command
    ;;
esac
setsid sh /run/job/command >"$out" 2>&1 </dev/null
echo "exit $?" >&3
sync
echo 1 >/proc/sys/kernel/sysrq
echo o >/proc/sysrq-trigger
# The root vanishes during power-off: to exec anything now (sleep) can fail and panic, a busy loop
# delays the power-off by a minute. A builtin that blocks does neither.
read -r _ <>/run/block
