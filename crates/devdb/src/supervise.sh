# Runs a command until it ends or its owner does. Standard input is a pipe that only the owner holds the other
# end of, so that its end is seen even when the owner is killed.
#
#   $1           the folder to remove once the owner has ended, or nothing
#   $2 and on    the command
#
# A line on the pipe crashes the command (SIGQUIT: Postgres drops everything). The end of the pipe stops it
# (SIGINT: Postgres rolls back and writes a checkpoint).
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
    # Again and again: a command that has only just been started ignores its first signals. In the end with
    # force. The loop is left when the command has ended, by the TERM below.
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
