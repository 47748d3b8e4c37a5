#!/usr/bin/env bash
# Prepares a Debian machine for sched-ctl: the same script for every box of the Vagrantfile, and
# for any machine of yours. May be run again; says what is left to do.
#
#   provision.sh sched-ext   recent Debian: a kernel with sched_ext from backports
#   provision.sh fallback    Debian as it is: its own kernel, without sched_ext
set -euo pipefail

role=${1:?usage: provision.sh sched-ext|fallback}
export DEBIAN_FRONTEND=noninteractive
# shellcheck source=/dev/null
. /etc/os-release

say() { printf '==> %s\n' "$*"; }

# Kernels of which some publish types (BTF) that let no sched_ext scheduler be loaded; see docs/vm.md.
is_defective() { [[ $1 =~ ^linux-image-7\.[12]\. ]]; }

# kernels FLAVOUR: the kernels of backports that sched_ext can be used with, newest first, as
# alternatives for apt: backports lists old ones of which parts are gone.
kernels() {
    local name
    apt-cache search --names-only "^linux-image-[0-9].*[0-9]-$1\$" | cut -d' ' -f1 |
        sort -rV | while read -r name; do
        if dpkg --compare-versions "${name#linux-image-}" ge 6.16 && ! is_defective "$name"; then
            echo "$name"
        fi
    done | paste -sd '|'
}

apt-get -q update
packages=(python3 python3-venv gcc libc6-dev make procps iproute2 util-linux rsync)

case $role in
sched-ext)
    list=/etc/apt/sources.list.d/sched-ctl-backports.list
    echo "deb http://deb.debian.org/debian $VERSION_CODENAME-backports main" >"$list"
    apt-get -q update
    packages+=(clang libbpf-dev libbpf1)
    flavour=$(dpkg --print-architecture)
    [[ $(uname -r) == *cloud* ]] && flavour=cloud-$flavour
    kernels=$(kernels "$flavour")
    if [ -z "$kernels" ]; then
        echo "error: backports of $VERSION_CODENAME have no kernel with sched_ext" >&2
        exit 1
    fi
    ;;
fallback) ;;
*)
    echo "error: provision.sh takes sched-ext or fallback, not '$role'" >&2
    exit 2
    ;;
esac

say "apt-get install ${packages[*]}"
apt-get -q -y --no-install-recommends install "${packages[@]}"

if [ "$role" = sched-ext ]; then
    say "apt-get satisfy: the newest kernel of backports that is whole and not defective"
    apt-get -q -y --no-install-recommends satisfy "$kernels"
    [ -d /sys/kernel/sched_ext ] || say "reboot to use the new kernel: vagrant reload"
fi
say "then: cd /sched-ctl && sudo ./dev demo"
