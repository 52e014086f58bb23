"""The `topic` of errors met while a checkpoint is read: names of the `validate` rules that report them."""

HEADER = "safetensors-header"
POINTER = "lfs-pointer"
WEIGHTS = "one-weight-source"
SHARDS = "shard-index"
JSON = "readable-json"
UNSAFE = "unsafe-file"
