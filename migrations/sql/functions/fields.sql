-- Encodes the fields of a header, each as its length in four bytes and then its bytes. NULL has the length -1.
-- array_send writes just that, after 20 bytes about the array. One call for all fields: in every transaction Postgres
-- prepares an expression anew, call by call, which takes longer than running it.
CREATE FUNCTION compaction_store.fields(p_values bytea[]) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.substring(pg_catalog.array_send(p_values), 21)
$$;
