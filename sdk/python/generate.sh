#!/usr/bin/env bash
# generate.sh [folder]: makes the files in src/pitwheel/_proto again, from the contract in /proto.
# Needs the grpcio-tools that pyproject.toml names: pip install '.[test]'
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
readonly FOLDER=${1:-src/pitwheel/_proto}
readonly CONTRACT=pitwheel/v1/pitwheel

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"${PYTHON:-python3}" -m grpc_tools.protoc --proto_path=../../proto \
    --python_out="$made" --pyi_out="$made" --grpc_python_out="$made" "$CONTRACT.proto"

mkdir -p "$FOLDER"
cp "$made/${CONTRACT}_pb2.py" "$made/${CONTRACT}_pb2.pyi" "$FOLDER/"
# The generated import is absolute, and would look for the contract where our package has none.
sed 's/^from pitwheel\.v1 import /from . import /' "$made/${CONTRACT}_pb2_grpc.py" >"$FOLDER/pitwheel_pb2_grpc.py"
