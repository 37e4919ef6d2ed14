#!/bin/bash
# Gets a Docker engine for the tests: does nothing where one answers, else installs Debian's and starts it by hand.
#
#   .ci/engine.sh          installs what is missing, starts dockerd in the background, waits until it answers
#   .ci/engine.sh stop     ends the dockerd that this script started, and what it started
#
# For root on Debian, with or without systemd. Listens on DOCKER_HOST where the caller exports one (unix:// only), else
# on the usual socket. AGENTIX_ENGINE_DATA is its data root (default /var/lib/agentix-engine), AGENTIX_ENGINE_RUN holds
# its pid file and log (default /run/agentix-engine). A second engine beside a first one, to stop and start in a test,
# needs all three of its own. Two in one network namespace would fight for docker0, and one would lose it: where another
# engine runs, this one gets a namespace of its own, without a way out. AGENTIX_ENGINE_UNSHARE=1 asks for that in any case.
set -euo pipefail

DATA=${AGENTIX_ENGINE_DATA:-/var/lib/agentix-engine}
RUN=${AGENTIX_ENGINE_RUN:-/run/agentix-engine}
HOST=${DOCKER_HOST:-unix:///var/run/docker.sock}
WAIT_S=${AGENTIX_ENGINE_WAIT:-60}
PIDFILE=$RUN/dockerd.pid
LOG=$RUN/dockerd.log

say() { echo "engine: $*" >&2; }
fail() { say "$*"; exit 1; }

answers() {
    # Not through the docker command: there may be an engine without one, or one without an engine.
    timeout 10 python3 - "$HOST" <<'PY' >/dev/null 2>&1
import http.client, socket, sys
from urllib.parse import urlsplit
url = urlsplit(sys.argv[1])
connection = http.client.HTTPConnection(url.hostname or "localhost", url.port or 2375, timeout=5)
if url.scheme == "unix":
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(5)
    connection.sock.connect(url.path)
elif url.scheme not in ("tcp", "http"):
    sys.exit("only docker itself can reach this one")
connection.request("GET", "/_ping")
sys.exit(connection.getresponse().status != 200)
PY
}

listens() {
    timeout 10 python3 - "${HOST#unix://}" <<'PY' >/dev/null 2>&1
import socket, sys
probe = socket.socket(socket.AF_UNIX)
probe.settimeout(5)
try:
    probe.connect(sys.argv[1])
except (FileNotFoundError, ConnectionRefusedError):
    sys.exit(1)
PY
}

alive() {
    # A pid file may outlive its machine: the number alone says nothing.
    [ -s "$PIDFILE" ] && [ "$(cat "/proc/$(cat "$PIDFILE")/comm" 2>/dev/null)" = dockerd ]
}

other_engine() {
    # Whether a dockerd runs in this network namespace that is not this script's.
    local folder pid own
    own=$(cat "$PIDFILE" 2>/dev/null || true)
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        if [ "$pid" != "$own" ] && [ "$(cat "$folder/comm" 2>/dev/null)" = dockerd ] &&
            [ "$(readlink "$folder/ns/net")" = "$(readlink /proc/self/ns/net)" ]; then
            return 0
        fi
    done
    return 1
}

install_missing() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v iptables >/dev/null || missing+=(iptables)
    [ -x /bin/busybox ] || missing+=(busybox-static)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    [ ${#missing[@]} = 0 ] && return
    command -v apt-get >/dev/null || fail "no apt-get here: start a Docker engine yourself and export DOCKER_HOST"
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || say "apt-get update failed: going on with the lists that are there"
    # The package's own start would take the usual socket and data root, and fails without systemd.
    local denied=""
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d && denied=1
    fi
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$RUN/apt.log" 2>&1 || {
        tail -n 20 "$RUN/apt.log" >&2
        [ -z "$denied" ] || rm -f /usr/sbin/policy-rc.d
        fail "could not install ${missing[*]}"
    }
    [ -z "$denied" ] || rm -f /usr/sbin/policy-rc.d
}

stop() {
    alive || { say "none of this script's is running"; return 0; }
    local pid; pid=$(cat "$PIDFILE")
    kill "$pid"
    for _ in $(seq 150); do
        alive || { say "stopped"; return 0; }
        sleep 0.2
    done
    kill -9 "$pid" 2>/dev/null || true
    say "killed: it did not stop within 30 s"
}

start() {
    case $HOST in unix://*) ;; *) fail "no engine answers at DOCKER_HOST=$HOST, and only a unix:// one can be started here" ;; esac
    install_missing
    if ! alive; then
        # It would have its socket taken away.
        ! listens || fail "somebody listens at $HOST who does not answer: see what it is, or end it"
        rm -f "$PIDFILE"
        mkdir -p "$DATA" "$(dirname "${HOST#unix://}")"
        say "starting dockerd on $HOST, data in $DATA"
        # Its own session and no descriptor of ours (9 is the lock), or the caller's pipe would stay open.
        local prefix=()
        if [ "${AGENTIX_ENGINE_UNSHARE:-}" = 1 ] || other_engine; then
            say "in a network namespace of its own"
            prefix=(unshare --net)
        fi
        setsid "${prefix[@]}" dockerd --host "$HOST" --data-root "$DATA" --exec-root "$RUN/exec" --pidfile "$PIDFILE" \
            </dev/null >"$LOG" 2>&1 9>&- &
    fi
    local started=$SECONDS
    until answers; do
        if [ $((SECONDS - started)) -ge "$WAIT_S" ] || { [ $((SECONDS - started)) -ge 5 ] && ! alive; }; then
            say "dockerd does not answer on $HOST after $((SECONDS - started)) s; the end of $LOG:"
            tail -n 30 "$LOG" >&2 || true
            exit 1
        fi
        sleep 0.2
    done
}

[ "$(id -u)" = 0 ] || { answers && exit 0; fail "no Docker engine answers at $HOST, and starting one takes root"; }
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
mkdir -p "$RUN"
exec 9>"$RUN/lock"
flock -w 600 9 || fail "another $0 has held $RUN/lock for 10 minutes"
case ${1:-start} in
    stop) stop ;;
    start)
        answers || start
        say "an engine answers at $HOST"
        ;;
    *) fail "unknown argument $1: start or stop" ;;
esac
