-- Encodes the fields of a header. Each field is its length in four bytes, followed by its bytes; NULL has the length
-- -1. array_send writes exactly this after 20 bytes that describe the array. All fields are encoded in one call,
-- because Postgres prepares every call in an expression anew in each transaction, which takes longer than running it.
CREATE FUNCTION compaction_store.fields(p_values bytea[]) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.substring(pg_catalog.array_send(p_values), 21)
$$;
