-- Encodes one field of a header: its length in four bytes, then its bytes. NULL has the length -1.
CREATE FUNCTION compaction_store.field(p_value bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN p_value IS NULL THEN E'\\xffffffff'::bytea
        ELSE pg_catalog.int4send(pg_catalog.octet_length(p_value)) || p_value
    END
$$;
