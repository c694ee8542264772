# Runs as the user that signs in, an administrator, because others cannot enter folders of tasks.
# Arguments: `switch.sh` and its arguments.
switch=$1
shift
exec sudo -n sh -c "$switch" runner "$@"
