#!/usr/bin/env bash
# generate.sh [folder]: generates the files in src/pitwheel/_proto from the contract in /proto.
# Needs the version of grpcio-tools in pyproject.toml: pip install '.[test]'
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
readonly FOLDER=${1:-src/pitwheel/_proto}
readonly CONTRACT=pitwheel/v1/pitwheel

generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
"${PYTHON:-python3}" -m grpc_tools.protoc --proto_path=../../proto \
    --python_out="$generated" --pyi_out="$generated" --grpc_python_out="$generated" "$CONTRACT.proto"

mkdir -p "$FOLDER"
cp "$generated/${CONTRACT}_pb2.py" "$generated/${CONTRACT}_pb2.pyi" "$FOLDER/"
# The generated import is absolute and names a package that does not exist here: make it relative.
sed 's/^from pitwheel\.v1 import /from . import /' "$generated/${CONTRACT}_pb2_grpc.py" >"$FOLDER/pitwheel_pb2_grpc.py"
