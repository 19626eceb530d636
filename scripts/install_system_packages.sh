#!/usr/bin/env bash
# Installs what the tests in network namespaces need, where that is possible; they are skipped without it.
set -eu
if command -v ip >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "iproute2 is missing and cannot be installed here: tests in network namespaces will be skipped"
    exit 0
fi
apt-get update -qq
apt-get install -y -qq iproute2 >/dev/null
