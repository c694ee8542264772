# Runs as root on a node, and executes nothing of the folder: it only enters the folder, refuses
# links, and switches to the owner of what it has entered. Arguments: `enter.sh`, the folder of the
# task below the root of the node, the command.
enter=$1
below=$2
shift 2
# Azure documents the folders as AZ_BATCH_NODE_ROOT_DIR; its nodes have those of tasks in `tasks`.
for root in /mnt/batch/tasks /mnt/batch /mnt/resource/batch/tasks /mnt/resource/batch /opt/batch/data/tasks /opt/batch/data
do if cd -P "$root/$below" 2>/dev/null
  then real=$(pwd -P)
  if [ "$real" != "$(cd -P "$root" && pwd -P)/$below" ]
    then echo "refused: $root/$below is reached through a link" >&2
    exit 69
  fi
  owner=$(stat -c %u .) || exit 69
  if [ "$owner" = 0 ]; then echo "refused: $real belongs to root" >&2
    exit 69
  fi
  exec sudo -n -u "#$owner" sh -c "$enter" runner . "$@"
fi
done
echo "this node has no folder $below" >&2
exit 69
