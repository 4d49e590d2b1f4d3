CREATE FUNCTION compaction_store.text_field(p_value text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN p_value IS NULL THEN E'\\xffffffff'::bytea
        ELSE pg_catalog.int4send(pg_catalog.octet_length(p_value)) || pg_catalog.convert_to(p_value, 'UTF8')
    END
$$;
