# Runs as the user of the task. Arguments: folder of the task, then the command, if any.
cd "${1:-$AZ_BATCH_TASK_WORKING_DIR}" || exit 69
shift
if [ -r logs/environment.sh ]
  then . ./logs/environment.sh
  cd code
fi
if [ $# -gt 0 ]; then exec "$@"
fi
PS1='[\u \W] \$ '
export PS1
if [ -t 0 ] && command -v bash >/dev/null 2>&1; then exec bash --norc -i
fi
exec sh
