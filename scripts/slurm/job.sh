# shellcheck shell=bash
# What the jobs in scripts/slurm/ share: a process a GPU on every node, by srun. Two minutes before the job's time is up SLURM signals this
# shell; the processes write a checkpoint and end, and the job is queued again, to go on from there. Sourced with the recipe as arguments:
#   sbatch [--nodes N ...] scripts/slurm/one_node.sbatch OPTION...     from the project's folder; --out DIR is needed, --resume auto is added
#   TRAIN_PROGRAM, SRUN_OPTIONS (such as --mpi=pmix, where the program was built with MPI): instead of ./train_gpt2cu and none
set -euo pipefail

[[ " $* " == *" --out"[\ =]* || " $* " == *" -o"* ]] || {
    echo "job: --out is missing; a job that is queued again must find the run it began" >&2
    exit 2
}
read -ra srun_options <<<"${SRUN_OPTIONS:-}"
requeue=no
step=
trap 'requeue=yes; [ -z "$step" ] || kill -s USR1 $step' USR1
# Every process sees all GPUs of its node and takes that of its local number.
srun --kill-on-bad-exit=1 "${srun_options[@]}" "${TRAIN_PROGRAM:-./train_gpt2cu}" "$@" --resume auto &
step=$!
status=0
wait $step || status=$?
# A signal ends the first wait, not the processes.
if [ $requeue = yes ]; then status=0 && wait $step || status=$?; fi
if [ $requeue = yes ] && [ $status = 0 ]; then
    echo "job: the time is nearly up; queueing again to go on from the newest checkpoint"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
