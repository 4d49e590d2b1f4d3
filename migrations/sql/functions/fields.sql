-- Encodes the fields of a header, each as its length in four bytes and then its bytes. NULL has the length -1.
-- array_send writes exactly that, after 20 bytes about the array. There is one call for all fields, because Postgres
-- prepares every call in an expression anew in each transaction, which takes longer than running it.
CREATE FUNCTION compaction_store.fields(p_values bytea[]) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.substring(pg_catalog.array_send(p_values), 21)
$$;
