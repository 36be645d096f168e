import { useSyncExternalStore } from 'react';
import { history, type Link } from '../api/history';

/** The state of the connection to the daemon. */
export const useLink = (): Link => useSyncExternalStore(history.subscribe, history.current);
