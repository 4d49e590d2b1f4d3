-- Does the work of refuse_bad_receipt for a receipt that its expression cannot judge. Returns true.
CREATE FUNCTION compaction_store.refuse_bad_unusual_receipt(p_receipt text) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM compaction_store.refuse_bad_document('receipt', p_receipt);
    IF ((compaction_store.parsable(p_receipt)::json -> 'pos')::text ~ '^[0-9]{1,18}$') IS NOT TRUE THEN
        RAISE EXCEPTION 'the receipt must have the pos of a view' USING ERRCODE = 'CS019';
    END IF;
    RETURN true;
END
$$;
