# How a part is run and reported. Every line of the report is in OUT/report.txt as soon as it is known,
# and every log is in the archive as soon as its part has ended, whatever ends the run.

# The second at which the current group of parts must end, so that later groups have their share.
until=$budget
failed=0 ok=0 problems=() skipped=()
# Not empty once there is known to be no device; then it is the reason to skip all parts.
no_device=''
# The part that runs, and its process group.
current='' group=''
# Not empty once something could not be written to OUT.
full=''

# say LINE: adds a line to the report and to the output.
say() {
    printf '%s\n' "$1" 2>/dev/null
    printf '%s\n' "$1" 2>/dev/null >>"$report" || full=yes
}

# relay: says every line of its input.
relay() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do say "${line:0:200}"; done
}

# begin: starts the report, and chooses an archive that does not exist yet.
begin() {
    report=$out/report.txt archive=$out/$stage.tar work=$(mktemp -d) || exit 2
    local run
    for ((run = 2; ; run++)); do
        [ -e "$archive" ] || break
        archive=$out/$stage.$run.tar
    done
    say "== $stage, $(date -u '+%F %T') UTC, at most $budget s${quick:+, quick: no measurement}"
}

# keep: moves the logs of parts that have ended to the archive.
keep() {
    if (cd "$work" && tar -rf "$archive" ./*) 2>/dev/null; then
        rm -f "$work"/*
    else
        full=yes
    fi
}

# record PART RESULT SECONDS
record() {
    case $2 in
    FAILED*) failed=1 problems+=("$1: $2") ;;
    SKIP*) skipped+=("$1: ${2#SKIP: }") ;;
    *) ((ok++)) ;;
    esac
    say "$(printf '%-44s %s %8s s' "$1" "$2" "$3")"
}

skip() { record "$1" "SKIP: $2" 0.0; }

# wanted PART: true if the part is asked for and there is time; otherwise records why it is skipped.
wanted() {
    current=$1
    if [ -n "$only" ] && ! [[ $1 =~ $only ]]; then
        return 1
    elif [ -n "$no_device" ]; then
        skip "$1" "$no_device"
    elif ((until - SECONDS < 4)); then
        skip "$1" 'out of time'
    else
        return 0
    fi
    return 1
}

# limited LIMIT COMMAND...: runs a command with its output in `log`, for LIMIT seconds at most, and no
# longer than there is time for the group. Sets `status`, `took`, and `killed` to the result of a
# command that ran out of time. With `live`, the lines are also in the report, as they come.
limited() {
    local limit=$1 left=$((until - SECONDS)) began=${EPOCHREALTIME/./} shown='' tenths
    shift
    killed=FAILED
    ((left >= limit)) || killed='SKIP: out of time' limit=$left
    log=$work/${current//[^A-Za-z0-9=.-]/_}.log
    : >"$log"
    # It leads a process group of its own, and kills all of it at the end of the time.
    timeout -s KILL "$limit" "$@" >"$log" 2>&1 </dev/null &
    group=$!
    if [ -n "${live-}" ]; then
        tail -n +1 -s 0.2 -f --pid="$group" "$log" 2>/dev/null | relay &
        shown=$!
    fi
    # The shell would report a killed command itself.
    { wait "$group"; } 2>/dev/null
    status=$?
    # A command may have left processes behind.
    kill -KILL -- "-$group" 2>/dev/null
    group=''
    [ -z "$shown" ] || wait "$shown"
    [ "$status" = 137 ] || killed=''
    tenths=$(((${EPOCHREALTIME/./} - began) / 100000))
    took=$((tenths / 10)).$((tenths % 10))
}

# judge: records the result of the last command, and says the end of a failure's log.
judge() {
    local line result=ok
    line=$(grep -aom1 'SKIP [A-Za-z0-9_:]*: .*' "$log")
    if [ -n "$killed" ]; then
        result="$killed, after $took s"
    elif [ "$status" != 0 ]; then
        result="FAILED: status $status"
    elif [ -n "$line" ]; then
        result="SKIP: ${line#*: }"
    fi
    record "$current" "${result:0:120}" "$took"
    [[ $result != FAILED* || -n ${live-} ]] || tail -n 15 "$log" | sed 's/^/    /' | relay
}

# part NAME LIMIT COMMAND...: runs one part, if it is wanted. True if it ran.
part() {
    wanted "$1" || return
    limited "${@:2}"
    judge
    keep
}

# stop SIGNAL: ends the part that runs, and the run.
stop() {
    trap '' TERM INT HUP
    [ -z "$group" ] || kill -KILL -- "-$group" "$group" 2>/dev/null
    record "${current:-the run}" "FAILED: ended by SIG$1" "$SECONDS"
    [ -z "$(ls "$work")" ] || keep
    finish
    exit 143
}

# finish: says what did not go well. All results are in the lines above.
finish() {
    say "== end of $stage after $SECONDS s: $ok ok, ${#problems[@]} failed, ${#skipped[@]} skipped"
    local line
    for line in "${problems[@]}"; do say "failed: $line"; done
    for line in "${skipped[@]}"; do say "not run: $line"; done
    rmdir "$work" 2>/dev/null || full=yes
    [ -z "$full" ] || say "$out could not take everything; logs that are missing there: $work"
}
