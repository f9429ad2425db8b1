#!/bin/sh
# Whether the role of this container is well, by its metrics: role-answers live | ready
#
# A role that ended for good (keep-running with KEEP_RUNNING_STAY) is live, and ready when its run is over. Of several
# ranks only the first serves metrics; the others end with it.

set -u
ended=${KEEP_RUNNING_STAY:-}
if [ -n "$ended" ] && [ -f "$ended" ]; then
    [ "$1" = live ] || [ "$(cat "$ended")" = 0 ]
    exit
fi
[ "${NODE_RANK:-0}" = 0 ] || exit 0
exec python -c "
import os, urllib.request
port = os.environ.get('ROLLOG_METRICS__PORT', '9400')
urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=5)
"
