CREATE FUNCTION compaction_store.number_field(p_value bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN p_value IS NULL THEN E'\\xffffffff'::bytea
        ELSE E'\\x00000008'::bytea || pg_catalog.int8send(p_value)
    END
$$;
