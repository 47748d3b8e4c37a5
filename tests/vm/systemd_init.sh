#!/bin/sh
# Process 1 of a guest hands over to the systemd of another root, which runs one program and ends.
#
#   systemd_init.sh ROOT PROGRAM [ARGUMENT ...]    ROOT: the guest may write to it
#
# `out` and `result` are the guest's ports, see vagrant/init.sh: only one may have them open.
set -e
exec 3>&-
root=$1
shift
cd "$root"
mkdir -p old proc sys dev run etc/systemd/system/multi-user.target.wants
cat >checks.sh <<SCRIPT
PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 $* >$out 2>&1
echo "exit \$?" >$result
sync
echo o >/proc/sysrq-trigger
sleep 1000
SCRIPT
cat >etc/systemd/system/checks.service <<UNIT
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/sh /checks.sh
UNIT
ln -sf ../checks.service etc/systemd/system/multi-user.target.wants/checks.service
ln -sf /usr/lib/systemd/system/multi-user.target etc/systemd/system/default.target
echo 0123456789abcdef0123456789abcdef >etc/machine-id  # or systemd takes this for its first boot
# What a guest without a terminal and modules has no use for, and the emulator takes long for.
for unit in systemd-modules-load.service proc-sys-fs-binfmt_misc.automount getty.target \
    timers.target systemd-sysctl.service systemd-tmpfiles-setup.service; do
    ln -sf /dev/null "etc/systemd/system/$unit"
done
touch etc/.updated var/.updated
for folder in proc sys dev run; do
    mount --rbind "/$folder" "$folder"
done
pivot_root . old
exec chroot . /sbin/init </dev/null
