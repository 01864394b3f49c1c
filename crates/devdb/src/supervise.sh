# Runs a command until it ends or its owner ends. Standard input is a pipe whose other end only the owner has open: it
# closes even when the owner is killed.
#
#   $1            the folder to remove after the owner has ended, or an empty string
#   $2 and after  the command
#
# A line on the pipe ends the command with SIGQUIT (immediate shutdown: Postgres writes no checkpoint). When the pipe
# closes, the command is ended with SIGINT (fast shutdown: Postgres rolls back and writes a checkpoint).
folder=$1
shift
exec 3<&0
"$@" </dev/null 3<&- &
command=$!
(
    owner_ended=0
    if read -r _ <&3; then
        signal=QUIT
    else
        signal=INT
        owner_ended=9
    fi
    trap 'exit "$owner_ended"' TERM
    # Repeated, because a command that was just started ignores its first signals; after 30 s with SIGQUIT. The TERM below
    # ends the loop when the command has ended.
    tries=0
    while [ "$tries" -lt 60 ] && kill -s "$signal" "$command"; do
        sleep 1 &
        wait "$!"
        tries=$((tries + 1))
        [ "$tries" -lt 30 ] || signal=QUIT
    done
    exit "$owner_ended"
) 2>/dev/null &
watcher=$!
exec 3<&-
wait "$command"
status=$?
kill -s TERM "$watcher" 2>/dev/null
wait "$watcher" 2>/dev/null
[ "$?" -ne 9 ] || [ -z "$folder" ] || rm -rf -- "$folder"
exit "$status"
