CREATE FUNCTION compaction_store.event_header(p_kind text, p_critical boolean, p_actor text, p_login text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT compaction_store.fields(ARRAY[
        'event'::bytea,
        pg_catalog.convert_to(p_kind, 'UTF8'),
        CASE WHEN p_critical THEN E'\\x01'::bytea ELSE E'\\x00'::bytea END,
        pg_catalog.convert_to(p_actor, 'UTF8'),
        pg_catalog.convert_to(p_login, 'UTF8')
    ])
$$;
