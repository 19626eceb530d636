#!/usr/bin/env bash
# Installs what the tests in network namespaces need, where that is possible; they are skipped without it.
set -eu
missing=()
command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
command -v iptables >/dev/null || missing+=(iptables)
if [ ${#missing[@]} = 0 ]; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "${missing[*]} cannot be installed here: the tests that need it will be skipped"
    exit 0
fi
apt-get update -qq
apt-get install -y -qq "${missing[@]}" >/dev/null
