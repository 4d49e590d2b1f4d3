# Sourced by scripts/adapters: runs LangGraph's conformance tests of checkpointers against StoreSaver, and a graph whose
# process is killed. Both need its checkpointer for Postgres.
"$venv"/bin/python -m pip install --quiet --disable-pip-version-check \
    langgraph-checkpoint-conformance langgraph-checkpoint-postgres
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
chmod 755 "$data"
XDG_DATA_HOME=$data "$venv"/bin/python tests/adapters/suites/langgraph_suite.py
"$venv"/bin/python -m pytest -q -p no:asyncio tests/adapters/suites/langgraph_killed.py
