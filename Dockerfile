# The command line as an image: migrate, worker, serve, api, mcp and the rest. `docker build -t compaction-store .`
ARG PYTHON=python:3.13-slim
FROM ${PYTHON} AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY compaction_store compaction_store
COPY migrations migrations
COPY docs docs
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON}
# An environment of its own, because Debian's Python refuses packages beside its own. It needs no pip of its own.
RUN python3 -m venv --without-pip /opt/compaction-store \
    && useradd --system --create-home --home-dir /var/lib/compaction-store --uid 10001 compaction-store
COPY --from=build /wheels /wheels
RUN wheel=$(echo /wheels/compaction_store-*.whl) \
    && python3 -m pip --python /opt/compaction-store/bin/python install --no-cache-dir --disable-pip-version-check \
        "$wheel[anthropic,audit,cli,importers,mcp,openai,otel,web]"
# In the place of pip's own script, so that `docker compose exec worker compaction-store doctor` reads the secrets too.
COPY deploy/entrypoint /opt/compaction-store/bin/compaction-store
USER compaction-store
WORKDIR /var/lib/compaction-store
ENV PATH=/opt/compaction-store/bin:$PATH PYTHONUNBUFFERED=1
ENTRYPOINT ["compaction-store"]
CMD ["--help"]
