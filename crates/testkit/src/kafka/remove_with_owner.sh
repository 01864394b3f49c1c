# Removes a folder when its owner ends. Standard input is a pipe whose other end only the owner holds.
#
#   $1    the folder
#   $2    a file in it with the process id of the program that uses it, which ends with the owner too
read -r _
pid=$(cat "$2" 2>/dev/null)
while [ -n "$pid" ] && kill -s 0 "$pid" 2>/dev/null; do sleep 0.1; done
rm -rf "$1"
