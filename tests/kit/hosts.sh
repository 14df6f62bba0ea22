#!/usr/bin/env bash
# Three hosts on this machine that form a Ray cluster; runs a command at the first.
#
#     RAY_TMPDIR=/tmp/ray-hosts tests/kit/hosts.sh COMMAND ...
#
# Each has a network of its own with one address, a shared memory, a name, and a disk of its own at
# $RAY_TMPDIR (a short path: Ray's sockets lie there). A bridge joins the networks. All processes
# are in one process namespace: they end with the command, as the namespaces do, whatever happens.
# Without any command it only tries whether the system permits this.
set -euo pipefail
inside=(unshare --user --map-root-user --net --mount --pid --fork --kill-child --mount-proc)
[ "${1-}" == --inside ] || exec "${inside[@]}" bash "$0" --inside "$@"
shift

mount -t tmpfs none /run && mkdir /run/netns # names of networks, seen by nobody else
ip link add hosts type bridge && ip link set hosts up
for k in 1 2 3; do
  ip netns add "host$k"
  ip link add "cable$k" type veth peer name eth0 netns "host$k"
  ip link set "cable$k" master hosts up
  ip -n "host$k" address add "10.9.0.$k/24" dev eth0
  ip -n "host$k" link set eth0 up
  ip -n "host$k" link set lo up
done
[ $# -gt 0 ] || exit 0

at() { # the host's number, then what it runs
  nsenter --net="/run/netns/host$1" unshare --mount --uts bash -c '
    hostname "host$1" && mount -t tmpfs none /dev/shm && mount -t tmpfs none "$RAY_TMPDIR"
    exec "${@:2}"' bash "$@"
}

export RAY_ADDRESS=10.9.0.1:6379 RAY_USAGE_STATS_ENABLED=0 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
mkdir -p "$RAY_TMPDIR"
for k in 2 3; do
  at $k ray start --address=$RAY_ADDRESS --node-ip-address=10.9.0.$k --num-cpus=1 --block >&2 &
done
# The first starts like the others, and has the driver beside it.
at 1 bash -c 'RAY_ADDRESS= ray start --head --node-ip-address=10.9.0.1 --port=6379 --num-cpus=1 \
  --include-dashboard=false >&2; exec "$@"' bash "$@"
