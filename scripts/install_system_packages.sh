#!/usr/bin/env bash
# Installs what the tests in network namespaces, on a Slurm cluster, under mpirun, in a browser and on an emulated
# accelerator need, where that is possible. Without iproute2, iptables, Open MPI, MPICH and chromium tests are skipped; without Slurm and munge they fail, since what Slurm does is
# known from nothing else.
set -eu
missing=()
command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
command -v iptables >/dev/null || missing+=(iptables)
PATH=$PATH:/usr/sbin
command -v slurmctld >/dev/null || missing+=(slurmctld)
command -v slurmd >/dev/null || missing+=(slurmd)
command -v sbatch >/dev/null || missing+=(slurm-client)
command -v munged >/dev/null || missing+=(munge)
command -v g++ >/dev/null || missing+=(g++)
header="import sysconfig; open(sysconfig.get_paths()['include'] + '/Python.h')"
python3 -c "$header" 2>/dev/null || missing+=(python3-dev)
browser=()
command -v chromium >/dev/null || browser+=(chromium fonts-dejavu-core)  # looks at the pages of paceline report
mpi=()  # both can be installed: mpirun.openmpi and mpirun.mpich
command -v mpirun.openmpi >/dev/null || mpi+=(openmpi-bin)
command -v mpirun.mpich >/dev/null || mpi+=(mpich)
if [ ${#missing[@]} = 0 ] && [ ${#browser[@]} = 0 ] && [ ${#mpi[@]} = 0 ]; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "${missing[*]} ${mpi[*]} ${browser[*]} cannot be installed here: the tests that need it will be skipped, or fail if they need Slurm"
    exit 0
fi
apt-get update -qq
# whatever these packages start, the tests start daemons of their own
install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
if [ ${#missing[@]} != 0 ]; then install "${missing[@]}"; fi
if [ ${#mpi[@]} != 0 ]; then install "${mpi[@]}" || echo "no mpirun: tests under mpirun are skipped"; fi
if [ ${#browser[@]} != 0 ]; then install "${browser[@]}" || echo "no chromium: tests in a browser are skipped"; fi
