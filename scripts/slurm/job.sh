# shellcheck shell=bash
# The common part of the jobs in scripts/slurm/: srun starts one process per GPU on every node. Two minutes before the job's time is up SLURM
# signals this shell; the processes write a checkpoint and end, and the job is queued again and continues from there. The jobs source this
# file with the options of train_gpt2cu as arguments:
#   sbatch [--nodes N ...] scripts/slurm/one_node.sbatch OPTION...     from the project's folder; --out DIR is needed, --resume auto is added
#   TRAIN_PROGRAM   the program to start (default: ./train_gpt2cu)
#   SRUN_OPTIONS    more options for srun, such as --mpi=pmix for a program built with MPI (default: none)
set -euo pipefail

[[ " $* " == *" --out"[\ =]* || " $* " == *" -o"* ]] || {
    echo "job: --out is missing; a job that is queued again must find the run it began" >&2
    exit 2
}
read -ra srun_options <<<"${SRUN_OPTIONS:-}"
requeue=no
step=
trap 'requeue=yes; [ -z "$step" ] || kill -s USR1 $step' USR1
# Every process sees all GPUs of its node and uses the one with its local rank.
srun --kill-on-bad-exit=1 "${srun_options[@]}" "${TRAIN_PROGRAM:-./train_gpt2cu}" "$@" --resume auto &
step=$!
status=0
wait $step || status=$?
# A signal ends the first wait but not the processes.
if [ $requeue = yes ]; then status=0 && wait $step || status=$?; fi
if [ $requeue = yes ] && [ $status = 0 ]; then
    echo "job: the time is nearly up; queueing again to go on from the newest checkpoint"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
