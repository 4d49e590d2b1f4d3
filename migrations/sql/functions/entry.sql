-- Computes an entry of the chain. p_ordinal is the seq of a message, the number of a compaction record, or 0 for an
-- event.
CREATE FUNCTION compaction_store.entry(
    p_previous bytea, p_pos bigint, p_ordinal bigint, p_at timestamptz, p_header bytea, p_commitment bytea
) RETURNS bytea
LANGUAGE sql IMMUTABLE
AS $$
    SELECT pg_catalog.sha256(
        E'\\x01'::bytea || p_previous || pg_catalog.int8send(p_pos) || pg_catalog.int8send(p_ordinal)
        || pg_catalog.int8send((EXTRACT(epoch FROM p_at - '1970-01-01 00:00+00'::timestamptz) * 1000000)::bigint)
        || p_commitment || p_header
    )
$$;
