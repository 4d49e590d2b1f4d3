-- Raises an error if a thread was erased, because nothing can be added to it.
CREATE FUNCTION compaction_store.refuse_erased(p_erased_pos bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_erased_pos IS NOT NULL THEN
        RAISE EXCEPTION 'the thread was erased at pos %', p_erased_pos
            USING ERRCODE = 'CS012', DETAIL = p_erased_pos::text;
    END IF;
END
$$;
