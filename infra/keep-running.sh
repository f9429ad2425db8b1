#!/bin/sh
# Runs a command and starts it again while that can help:
#
#   keep-running.sh COMMAND [ARGUMENT...]
#
# Statuses 0 (the run is over), 2 (settings or data that cannot be used) and 78 (another dispatcher or trainer has
# taken over) are final, and so is any end after SIGTERM or SIGINT, which are passed on. After anything else the
# command starts again: 1 s later, then with doubled pauses up to 15 s, at most 10 times; the count begins again when it
# had worked for 5 minutes. Status 3 (the engine could not start) is final the second time in a row. Status 75 (suspended, or without a broker, for too long) does not count. The exit status is
# the command's last one.
#
# Docker's restart policies know only zero and not zero: they bring back a container that was killed, but would also start
# a superseded dispatcher again and again, each time against its successor. So a final status of 2, 3 or 78 is remembered
# for 20 s in the file that KEEP_RUNNING_FINAL names; whoever is started in that time ends with it at once, and Docker
# gives up. A later `docker compose up` tries again.
#
# torchrun ends with 1 whatever its ranks ended with. So where KEEP_RUNNING_STATUS names a file, `rollog` notes its status
# there, and that one counts.
#
# Kubernetes starts again whatever ends. So where KEEP_RUNNING_STAY names a file, a final status is written there and the
# script waits for SIGTERM; role-answers says by that file whether the container is well.

set -u
mark=
child=
stopped=
pass_on() {
    stopped=yes
    [ -z "$mark" ] || echo > "$mark/stopped"
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}
# First of all: the first process of a container does not even get a signal that it has no trap for.
trap pass_on TERM INT HUP

final=${KEEP_RUNNING_FINAL:-/tmp/keep-running.final}
note=${KEEP_RUNNING_STATUS:-}
if [ -f "$final" ]; then
    read -r status ended < "$final"
    if [ $(($(date +%s) - ended)) -lt 20 ]; then
        echo "keep-running: status $status was final" >&2
        exit "$status"
    fi
fi
# What an earlier container of the same pod has left there is not true of this one.
[ -z "${KEEP_RUNNING_STAY:-}" ] || rm -f "$KEEP_RUNNING_STAY"
# Where a signal is noted before it is passed on. Without it, one that comes beside the start of a child may be lost.
mark=$(mktemp -d) && trap 'rm -rf "$mark"' EXIT
restarts=0
pause=1
before=

# A child has the traps of this shell for a moment, and a signal that comes in it is lost. So each looks for the mark.
begin() {
    (
        [ -z "$stopped" ] && [ ! -e "$mark/stopped" ] || exit 143
        exec "$@"
    ) &
    child=$!
    [ -z "$stopped" ] || kill -TERM "$child" 2>/dev/null
}

# A trapped signal interrupts `wait`; what counts is the status after the last one.
wait_for_child() {
    while :; do
        wait "$child"
        status=$?
        kill -0 "$child" 2>/dev/null || return
    done
}

# Sleeps, or less where a signal comes. The end of `sleep` is waited for in any case: the mark that it looks for has to
# outlive it.
rest() {
    ended_with=$status
    begin sleep "$1"
    wait_for_child
    child=
    status=$ended_with
}

finish() {
    if [ -n "${KEEP_RUNNING_STAY:-}" ] && [ -z "$stopped" ]; then
        echo "$1" > "$KEEP_RUNNING_STAY"
        echo "keep-running: status $1 is final, waiting to be stopped" >&2
        while [ -z "$stopped" ]; do
            rest 3600
        done
    fi
    exit "$1"
}

take_note() {
    if [ "$status" -ne 0 ] && [ -n "$note" ] && [ -s "$note" ]; then
        read -r noted < "$note"
        [ "$noted" -eq 0 ] || status=$noted
    fi
}

while :; do
    [ -z "$note" ] || rm -f "$note"
    began=$(date +%s)
    begin "$@"
    wait_for_child
    take_note
    child=
    case $before-$status in
        *-0) finish 0 ;;
        *-2 | *-78 | 3-3)
            echo "$status $(date +%s)" > "$final"
            finish "$status"
            ;;
    esac
    before=$status
    [ -z "$stopped" ] || exit "$status"
    if [ $(($(date +%s) - began)) -ge 300 ]; then
        restarts=0
        pause=1
    fi
    if [ "$status" -eq 75 ]; then
        echo "keep-running: status 75, restart in $pause s" >&2
    else
        if [ "$restarts" -ge 10 ]; then
            echo "keep-running: status $status, given up after $restarts restarts" >&2
            exit "$status"
        fi
        restarts=$((restarts + 1))
        echo "keep-running: status $status, restart $restarts in $pause s" >&2
    fi
    rest "$pause"
    [ -z "$stopped" ] || exit "$status"
    pause=$((pause * 2 > 15 ? 15 : pause * 2))
done
