CREATE FUNCTION compaction_store.message_header(
    p_role text, p_tokens bigint, p_counter text, p_key text, p_call_size bigint, p_receipt text, p_actor text,
    p_login text, p_meta_commitment bytea
) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT compaction_store.fields(ARRAY[
        'message'::bytea,
        pg_catalog.convert_to(p_role, 'UTF8'),
        pg_catalog.int8send(p_tokens),
        pg_catalog.convert_to(p_counter, 'UTF8'),
        pg_catalog.convert_to(p_key, 'UTF8'),
        pg_catalog.int8send(p_call_size),
        pg_catalog.convert_to(p_receipt, 'UTF8'),
        pg_catalog.convert_to(p_actor, 'UTF8'),
        pg_catalog.convert_to(p_login, 'UTF8'),
        p_meta_commitment
    ])
$$;
