# Runs a command that is killed when its owner ends. Standard input is a socket whose other end only the owner holds, so
# that its end is seen even when the owner is killed. A line to the owner says that the watcher runs.
#
#   $@    the command; it replaces this shell and so keeps its process id
#
# A line from the owner ends the watcher without a kill: the owner has already waited for the command, and its process id
# may belong to another process by now. SIGKILL, because a stopped command must end too. SIGPIPE is ignored: the owner may have been killed before
# it was told that the watcher runs.
exec 3<&0
/bin/sh -c 'trap "" PIPE; echo watching >&0; read -r _ || kill -s KILL "$1"' pitwheel-watcher "$$" <&3 3<&- >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
