"""Limits on reading, parsing and searching files: larger files are refused or not checked.

SECURITY.md's table is made of these numbers (docs/budgets.py).
"""

# of a safetensors header: bytes, by the format; tensors of a file, of which the largest models have 140,000
# in some hundred; characters of a name, as of any key of JSON; keys of the metadata, of which real ones have
# fewer than 100
MAX_HEADER, MAX_TENSORS, MAX_NAME, MAX_METADATA = 100_000_000, 40_000, 2_048, 1_000
# entries of all objects and lists of a header, of a drafter's config.json, of a tokenizer, whose merges may
# be pairs, and of other JSON; and objects and lists inside each other; real files have fewer than ten
HEADER_ENTRIES, CONFIG_ENTRIES, TOKENIZER_ENTRIES = 16 * MAX_TENSORS, 100_000, 8_000_000
MAX_ENTRIES, MAX_DEPTH = 1_000_000, 64
# of a drafter: bytes of its config.json and hf_quant_config.json, and keys of its config.json with those of
# the objects in it, of which published ones have at most a few hundred; bytes of its eaglectl.json, where
# each conversion adds 0.6 kB a tensor: 2.4 MB of the most that a drafter may have, 12 MB of 20,000
MAX_CONFIG, MAX_KEYS, MAX_RECORD = 4 << 20, 10_000, 64 << 20
# of a quantisation config: names of modules; and steps to compare its expressions (re:...) with a name, as
# backtracking takes: characters of a name to the power of an expression's quantifiers. 128 expressions with
# three quantifiers each, of which real ones have one or two, reach them
MAX_MODULES, MAX_STEPS = 4_096, 1 << 25
# searched for secrets: bytes of a file, of its header (4,096 tensors, the most of a drafter, take a tenth),
# and places of one file where a secret of one kind may be
MAX_SCANNED, MAX_HEADER_SCANNED, MAX_PLACES = 64 << 20, 8 << 20, 100_000
# bytes of a card or a list of digests, which are texts for people; commands of a card, and characters of one
LARGEST_TEXT, MAX_COMMANDS, LONGEST_COMMAND = 4_000_000, 100, 8_192
# findings of one rule
MAX_MATCHES = 256
