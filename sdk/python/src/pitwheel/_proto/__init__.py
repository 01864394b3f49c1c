"""The gRPC contract, made by generate.sh. Not to be edited."""
