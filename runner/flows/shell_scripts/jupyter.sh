# Sets a token, because Jupyter prints a generated one, and the log is uploaded to storage.
umask 077
token=$(mktemp)
od -An -v -N24 -tx1 /dev/urandom | tr -d ' \n' >"$token"
export JUPYTER_TOKEN_FILE=$token
set -- "$1" jupyter lab --ip=127.0.0.1 --port=0 --no-browser --allow-root
exec timeout --preserve-status "$@" --ServerApp.root_dir=.
