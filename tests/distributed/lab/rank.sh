#!/usr/bin/env bash
# rank.sh NOTES HEDDLE ARGS...: one rank of a fault test. Runs heddle and notes in NOTES/rank-N how it
# ended and when, then ends the same way. One rank may differ from the others:
#   LAB_ODD_RANK=1 with LAB_ODD_ARGS, LAB_ODD_HEDDLE or LAB_ODD_PLUGINS.
notes=$1 heddle=$2
shift 2
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK:-0}}}
if [ "$rank" = "${LAB_ODD_RANK:-none}" ]; then
  heddle=${LAB_ODD_HEDDLE:-$heddle}
  [ -n "${LAB_ODD_PLUGINS:-}" ] && export HEDDLE_PLUGIN_PATH=$LAB_ODD_PLUGINS
  # shellcheck disable=SC2086
  set -- "$@" ${LAB_ODD_ARGS:-}
fi
ulimit -c 0
trap : TERM INT USR1
"$heddle" "$@"
code=$?
# Without another process: mpirun may be ending everything here.
echo "$code $EPOCHREALTIME" >"$notes/rank-$rank"
[ $code -gt 128 ] && [ $code -lt 160 ] && kill -$((code - 128)) $$
exit $code
