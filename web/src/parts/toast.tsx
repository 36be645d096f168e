import { Link } from '@tanstack/react-router';
import { Toast } from 'radix-ui';
import { createContext, type ReactNode, useContext, useState } from 'react';
import type { State } from '../model/work';
import { Glyph } from './glyph';

interface Note {
  state: State;
  text: ReactNode;
  to?: string;
}

const Tell = createContext<(note: Note) => void>(() => undefined);

/** Says the result of an action in a corner of the page. */
export const useToast = () => useContext(Tell);

export function Toasts({ children }: { children: ReactNode }) {
  const [note, tell] = useState<Note | null>(null);
  return (
    <Tell.Provider value={tell}>
      <Toast.Provider duration={6000}>
        {children}
        <Toast.Root className="toast" open={note !== null} onOpenChange={(open) => !open && tell(null)}>
          {note && (
            <>
              <Glyph state={note.state} />
              <Toast.Description>{note.text}</Toast.Description>
              {note.to && (
                <Link className="btn quiet sm" to={note.to}>
                  Open
                </Link>
              )}
            </>
          )}
        </Toast.Root>
        <Toast.Viewport className="toasts" />
      </Toast.Provider>
    </Tell.Provider>
  );
}
