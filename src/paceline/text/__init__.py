"""Format text, and parse scripts. Standard library only.

terminal         wraps and colours messages
wording          lists, counts, sizes, times and tables in words
quoting          quotes words for a shell, and escapes control characters
json_text        writes JSON as all commands print it
plain_data       reads plain values into dataclasses
secret_texts     finds secrets in texts, by names and by form
toml             parses TOML on every version of Python
syntax           parses Python files
rank_conditions  decides which ranks a condition is true on
"""
