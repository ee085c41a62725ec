#!/bin/bash
# <header>: <places>.
# Stop with a checkpoint: scancel --signal=TERM JOB   The same script again resumes.
#SBATCH --job-name=<name>
#SBATCH --output=<name>-%j.log
## A job that was queued again goes on writing where it left off.
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --nodes=<nodes>
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=<cores>
<if gres>
#SBATCH --gres=<gres>:<devices>
<end>
<if takes_whole_nodes>
#SBATCH --exclusive
#SBATCH --mem=0
<end>
<if partition>
#SBATCH --partition=<partition>
<end>
<if time>
#SBATCH --time=<time>
#SBATCH --signal=B:USR1@<warned_seconds>
<end>
## Last, because the last of two wins.
#SBATCH <sbatch>
cd <directory> || exit 3
<if set_up>
# shellcheck source=/dev/null
<set_up>
<end>
<if several_nodes>
export NNODES=<nodes>
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
## Two jobs on one node must not meet.
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
<end>
<if time>
# Before the time limit Slurm sends this shell SIGUSR1. Training gets SIGTERM and writes a checkpoint; then the job
# queues again and goes on from there.
time_is_up=
trap 'time_is_up=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
<end>
## Since Slurm 22.05 srun does not take over what sbatch was told.
<if several_nodes>
# shellcheck disable=SC2016
<end>
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
<if several_nodes>
  bash -c 'NODE_RANK=$SLURM_NODEID exec "$@"' node <command><in_background>
<end>
<if not several_nodes>
  <command><in_background>
<end>
<if time>
step=$!
status=0
while kill -0 "$step" 2>/dev/null; do
  status=0
  wait "$step" || status=$?
done
if [ -n "$time_is_up" ] && [ "$status" -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
<end>
