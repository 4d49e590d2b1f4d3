# Sourced by scripts/adapters: runs the SDK's own tests of sessions against StoreSession. They are in the SDK's source
# distribution, which is downloaded, and not kept.
version=$("$venv"/bin/python -c 'import importlib.metadata as m; print(m.version("openai-agents"))')
sources=.venv-adapters/sources
mkdir -p "$sources"
if ! [ -d "$sources/openai_agents-$version" ]; then
    "$venv"/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
        --dest "$sources" "openai-agents==$version"
    tar -xzf "$sources/openai_agents-$version.tar.gz" -C "$sources"
fi
"$venv"/bin/python -m pip install --quiet --disable-pip-version-check \
    pytest-asyncio aiosqlite 'sqlalchemy[asyncio]'
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
chmod 755 "$data"
plugins=$PWD/tests/adapters/suites
(
    cd "$sources/openai_agents-$version"
    XDG_DATA_HOME=$data PYTHONPATH=$plugins "$venv"/bin/python -m pytest -q -rs -p openai_agents_suite \
        tests/memory/test_session.py tests/memory/test_session_limit.py \
        tests/memory/test_openai_responses_compaction_session.py tests/extensions/memory/test_sqlalchemy_session.py
)
