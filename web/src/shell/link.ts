import { useSyncExternalStore } from 'react';
import { history, type Link } from '../api/history';

/** Whether the daemon is there, and since when. */
export const useLink = (): Link => useSyncExternalStore(history.subscribe, history.current);
