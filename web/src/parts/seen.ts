import { type RefObject, useEffect, useRef, useState } from 'react';

/** Tells whether an element has been scrolled into sight, for data that is loaded only then. */
export function useSeen<E extends Element>(): [RefObject<E | null>, boolean] {
  const place = useRef<E>(null);
  const [isSeen, see] = useState(false);
  useEffect(() => {
    if (!place.current) return;
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) {
        see(true);
        observer.disconnect();
      }
    });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return [place, isSeen];
}
