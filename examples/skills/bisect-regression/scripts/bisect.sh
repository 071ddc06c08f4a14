#!/bin/sh
# usage: bisect.sh GOOD_COMMIT COMMAND...
# Names the first commit on which COMMAND fails, starting from HEAD.
set -eu

good=$1
shift
git bisect start HEAD "$good" >/dev/null
trap 'git bisect reset >/dev/null 2>&1' EXIT
git bisect run "$@"
