# a run of seconds
max_iters = 3
out_dir = 'out-small'
