CREATE FUNCTION compaction_store.flag_field(p_value boolean) RETURNS bytea
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN p_value THEN E'\\x0000000101'::bytea ELSE E'\\x0000000100'::bytea END
$$;
